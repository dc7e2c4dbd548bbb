"""The half that runs in the Jupyter server: it reads run folders and nothing of what runs them."""
