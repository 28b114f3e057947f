"""Launch files of a job: what starts it under each framework, and what each cannot express."""
