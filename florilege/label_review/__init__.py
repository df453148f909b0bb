"""People review labels: which photos they see, the page they see them on, and what they agree on.

`cli` adds the verb `florilege data review` to those of `florilege.data.cli`.
"""
