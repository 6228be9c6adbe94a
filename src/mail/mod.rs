//! Everything that speaks to a mail provider. Only this room names lettre.

mod blame;
mod body;
pub mod breaker;
pub mod classify;
pub mod compose;
mod delay;
pub mod endpoint;
mod header;
pub mod limit;
pub mod open;
pub mod pool;
pub mod provider;
pub mod rate;
pub mod reply;
pub mod session;
mod stream;
pub mod trust;
