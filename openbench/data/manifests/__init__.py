"""Which image belongs to which set and shows which class: lists, rules and splits."""
