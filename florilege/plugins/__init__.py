"""What only some people need, each in a folder of its own, through the hooks of `florilege.hooks`.

Nothing else imports a plugin, and no plugin imports another one; ``make lint`` checks both.
"""
