//! What a notification says, parsed once: a [`Content`] can be made into a message.

