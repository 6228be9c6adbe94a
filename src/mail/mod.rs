//! Everything that speaks to a mail provider. Only this room names lettre.

mod blame;
mod body;
pub mod classify;
mod delay;
pub mod endpoint;
pub mod open;
pub mod pool;
pub mod reply;
pub mod session;
mod stream;
