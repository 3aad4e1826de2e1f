"""All-gathers and reduce-scatters of an update under FSDP1 and FSDP2, layout by layout."""
