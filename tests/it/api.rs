//! The message API by its contract (docs/api.md): the real program, real requests, and what the database then holds.

mod accepting;
mod description;
mod events;
mod lookups;
mod refusing;
mod serving;
mod storm;
