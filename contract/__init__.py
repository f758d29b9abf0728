"""All that crosses a wall between Trainyard's rooms, as pydantic models. Imports nothing of ours."""
