//! Everything that speaks to a mail provider. Only this room names lettre.

pub mod compose;
mod header;
