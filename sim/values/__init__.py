"""Values that all layers exchange: types, units, checked fields, recorded columns, places."""
