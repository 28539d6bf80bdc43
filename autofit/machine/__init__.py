"""The resources of this host, locks on its devices, and the memory limits of trials."""
