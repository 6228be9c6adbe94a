//! Real parts for the demo and the tests: a private PostgreSQL cluster, a scriptable SMTP server,
//! and what stands or breaks between them and the program.

pub mod browser;
pub mod cluster;
pub mod demo;
pub mod dovecot;
pub mod guardian;
mod listener;
pub mod pgbouncer;
pub mod postfix;
mod programs;
pub mod proxy;
pub mod smtp;
