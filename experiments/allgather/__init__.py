"""All-gathers and reduce-scatters of an update, layout by layout."""
