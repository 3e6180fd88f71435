"""Results for people: tables and the lines around them."""
