//! Sources of evidence: what others say about attempts after the event, read and recorded.
//!
//! This room reads; what a piece proves about a notification's state is `domain::evidence`'s to say.

pub mod bounce;
pub mod bounces;
pub mod events;
pub mod exim;
pub mod follow;
pub mod maillog;
pub mod position;
pub mod postfix;
