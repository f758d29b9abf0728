"""Archives and user data that nodes boot from."""
