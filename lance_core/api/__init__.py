"""The verbs: what users call. Front doors (`lance_core`, `lance_core.fragment`, ...) re-export from here."""
