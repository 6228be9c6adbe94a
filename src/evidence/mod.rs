//! Sources of evidence: what others say about attempts after the event, read and recorded.
//!
//! This room reads; what a piece proves about a notification's state is `domain::evidence`'s to say.

pub mod events;
pub mod maillog;
pub mod postfix;
