"""The values that flow: frozen, with units in the field names; no behaviour beyond their own fields."""
