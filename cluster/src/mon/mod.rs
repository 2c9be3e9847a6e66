//! The monitor session: hunting, subscriptions, commands.
