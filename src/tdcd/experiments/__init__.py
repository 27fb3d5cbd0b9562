"""The paper's figures: what to run, whether the paper's claims hold, and one page that shows both."""
