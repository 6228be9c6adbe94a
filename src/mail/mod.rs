//! Everything that speaks to a mail provider. Only this room names lettre.

pub mod breaker;
pub mod compose;
mod header;
pub mod provider;
pub mod rate;
pub mod trust;
