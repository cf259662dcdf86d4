"""Which device a request goes to: pure functions over facts."""
