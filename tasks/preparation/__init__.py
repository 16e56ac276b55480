"""What is made of registered rows before anything is released: mapped versions, and the parties' shards."""
