"""The paper's figures and a few beyond it: what to run, whether what is claimed holds, and one page that shows both."""
