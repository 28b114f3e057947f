"""From traces of single ranks to a job: who meets whom, who does the same, who is like whom."""
