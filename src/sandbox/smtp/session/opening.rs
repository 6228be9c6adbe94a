//! Everything before the first transaction: EHLO, STARTTLS and AUTH.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use super::super::Tls;
use super::super::action::Stage;
use super::super::auth::{Exchange, Mechanism, Turn};
use super::super::syntax::Refusal;
use super::{HOST, Hello, Over, Said, Session, Step};

impl Session<'_> {
    pub(super) async fn ehlo(&mut self, hello: Hello) -> Step {
        match self.consult(Stage::Ehlo, "", &[]).await? {
            Said::Raw(first) if first != Some(b'2') => return Ok(()),
            Said::Raw(_) => {}
            Said::Normal if hello == Hello::Helo => self.wire.queue(format!("250 {HOST}\r\n").as_bytes()),
            Said::Normal => {
                let lines = self.greeting_lines();
                let last = lines.len() - 1;
                for (at, line) in lines.iter().enumerate() {
                    let separator = if at == last { ' ' } else { '-' };
                    self.wire.queue(format!("250{separator}{line}\r\n").as_bytes());
                }
            }
        }
        // RFC 5321, 4.1.4: a new EHLO clears the buffers as RSET does.
        self.hello = hello;
        self.transaction = None;
        self.mail_refused = false;
        Ok(())
    }

    fn greeting_lines(&self) -> Vec<String> {
        let extensions = &self.shared.extensions;
        let mut lines = vec![HOST.to_owned()];
        let mut offer = |offered: bool, line: &str| {
            if offered {
                lines.push(line.to_owned());
            }
        };
        offer(extensions.pipelining, "PIPELINING");
        offer(extensions.eight_bit_mime, "8BITMIME");
        offer(extensions.smtputf8, "SMTPUTF8");
        offer(extensions.dsn, "DSN");
        offer(extensions.enhanced_status_codes, "ENHANCEDSTATUSCODES");
        offer(self.starttls_offered(), "STARTTLS");
        if let Some(size) = extensions.size {
            offer(true, &format!("SIZE {size}"));
        }
        if let Some(auth) = self.auth_offered() {
            let names: Vec<_> = auth.mechanisms.iter().map(|mechanism| mechanism.as_str()).collect();
            offer(true, &format!("AUTH {}", names.join(" ")));
        }
        lines
    }

    pub(super) async fn starttls(&mut self) -> Step {
        let Tls::StartTls(config) = &self.shared.tls else {
            self.refuse(&Refusal { code: 502, enhanced: "5.5.1", text: "STARTTLS is not offered", violation: true });
            return Ok(());
        };
        if self.secure || self.hello == Hello::Awaited || self.transaction.is_some() {
            self.out_of_order("STARTTLS out of order");
            return Ok(());
        }
        if !self.answer(Stage::StartTls, 220, "2.0.0", "go ahead").await? {
            return Ok(());
        }
        if self.wire.has_input() {
            self.violation("more was sent after STARTTLS, before the handshake (RFC 3207, 4)");
            self.wire.discard_input();
        }
        self.handshake(Arc::clone(config)).await?;
        // RFC 3207, 4.2: what was learned in clear is forgotten.
        self.hello = Hello::Awaited;
        self.authenticated = false;
        Ok(())
    }

    pub(super) async fn handshake(&mut self, config: Arc<ServerConfig>) -> Step {
        if let Said::Raw(_) = self.consult(Stage::Handshake, "", &[]).await? {
            // After something that is no TLS nothing sensible can follow.
            self.wire.flush().await?;
            self.wire.hang().await;
            return Err(Over);
        }
        self.wire.handshake(config).await?;
        self.secure = true;
        Ok(())
    }

    pub(super) async fn auth(&mut self, mechanism: &str, initial: Option<String>) -> Step {
        if self.hello != Hello::Ehlo || self.authenticated || self.transaction.is_some() {
            self.out_of_order("AUTH out of order");
            return Ok(());
        }
        let shared = self.shared;
        let Some(auth) = shared.auth.as_ref() else {
            self.refuse(&Refusal { code: 502, enhanced: "5.5.1", text: "AUTH is not offered", violation: true });
            return Ok(());
        };
        if self.auth_offered().is_none() {
            self.refuse(&Refusal {
                code: 538,
                enhanced: "5.7.11",
                text: "encryption is required before AUTH",
                violation: true,
            });
            return Ok(());
        }
        let Some(mechanism) = auth.mechanisms.iter().copied().find(|one: &Mechanism| one.as_str() == mechanism) else {
            self.refuse(&Refusal { code: 504, enhanced: "5.5.4", text: "mechanism not offered", violation: true });
            return Ok(());
        };
        let mut exchange = Exchange::new(auth, mechanism);
        let mut turn = match initial {
            Some(initial) => exchange.respond(&initial),
            None => Turn::Challenge(exchange.first_challenge()),
        };
        let good = loop {
            match turn {
                Turn::Verdict(good) => break good,
                Turn::Malformed => {
                    self.refuse(&Refusal { code: 501, enhanced: "5.5.2", text: "not base64", violation: true });
                    return Ok(());
                }
                Turn::Challenge(challenge) => {
                    self.reply(334, "", &challenge);
                    let response = self.line().await?;
                    if response == b"*" {
                        self.reply(501, "5.7.0", "cancelled");
                        return Ok(());
                    }
                    turn = exchange.respond(&String::from_utf8_lossy(&response));
                }
            }
        };
        let (code, enhanced, text) =
            if good { (235, "2.7.0", "welcome") } else { (535, "5.7.8", "credentials invalid") };
        self.authenticated = self.answer(Stage::Auth, code, enhanced, text).await?;
        Ok(())
    }
}
