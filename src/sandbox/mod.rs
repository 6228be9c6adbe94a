//! Real parts for the demo and the tests: a private PostgreSQL cluster and a scriptable SMTP server.
