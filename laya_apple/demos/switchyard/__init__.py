"""Switchyard: an open-loop benchmark shown as a rail junction."""
