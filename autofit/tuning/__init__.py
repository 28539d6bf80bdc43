"""The tuning engine. It describes the workload, searches, confirms the choice and stores the result; it prints nothing."""
