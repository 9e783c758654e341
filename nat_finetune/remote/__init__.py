"""What adapters of other backends share: requests, polling, secrets, job records, the served model."""
