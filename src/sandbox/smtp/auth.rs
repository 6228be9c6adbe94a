//! The server's side of SASL: PLAIN (RFC 4616), LOGIN and XOAUTH2. Pure: responses in, challenges and verdicts out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A SASL mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// RFC 4616.
    Plain,
    /// `AUTH LOGIN`: the user's name and the password in two challenges.
    Login,
    /// Google's and Microsoft's bearer token; the password is the token.
    XOauth2,
}

impl Mechanism {
    /// Every mechanism.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Login, Self::XOauth2];

    /// The name that EHLO lists.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Login => "LOGIN",
            Self::XOauth2 => "XOAUTH2",
        }
    }
}

/// The one account that the server knows.
#[derive(Clone)]
pub struct Auth {
    /// The user's name.
    pub user: String,
    /// The password, or for XOAUTH2 the token.
    pub password: String,
    /// What is offered, in this order.
    pub mechanisms: Vec<Mechanism>,
}

impl Auth {
    /// An account for which every mechanism is offered.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), mechanisms: Mechanism::ALL.to_vec() }
    }
}

/// What follows from a response of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    /// Ask on: the text of a 334, already in base64.
    Challenge(String),
    /// All is said.
    Verdict(bool),
    /// The response is no base64.
    Malformed,
}

/// One exchange under way.
pub(super) struct Exchange<'a> {
    auth: &'a Auth,
    mechanism: Mechanism,
    user: Option<Vec<u8>>,
    refused: bool,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(auth: &'a Auth, mechanism: Mechanism) -> Self {
        Self { auth, mechanism, user: None, refused: false }
    }

    /// The first challenge, for a client that sent no initial response.
    pub(super) fn first_challenge(&self) -> String {
        match self.mechanism {
            Mechanism::Plain | Mechanism::XOauth2 => String::new(),
            Mechanism::Login => STANDARD.encode("Username:"),
        }
    }

    pub(super) fn respond(&mut self, response: &str) -> Turn {
        if self.refused {
            return Turn::Verdict(false);
        }
        // RFC 4954, 4: a lone `=` is an empty initial response.
        let response = if response == "=" { "" } else { response };
        let Ok(response) = STANDARD.decode(response) else { return Turn::Malformed };
        match self.mechanism {
            Mechanism::Plain => Turn::Verdict(self.plain(&response)),
            Mechanism::Login => match self.user.take() {
                None => {
                    self.user = Some(response);
                    Turn::Challenge(STANDARD.encode("Password:"))
                }
                Some(user) => {
                    Turn::Verdict(user == self.auth.user.as_bytes() && response == self.auth.password.as_bytes())
                }
            },
            Mechanism::XOauth2 => {
                let good = format!("user={}\x01auth=Bearer {}\x01\x01", self.auth.user, self.auth.password);
                if response == good.as_bytes() {
                    return Turn::Verdict(true);
                }
                // The client learns the reason from a challenge and answers it with an empty line.
                self.refused = true;
                Turn::Challenge(STANDARD.encode(r#"{"status":"401","schemes":"bearer"}"#))
            }
        }
    }

    fn plain(&self, response: &[u8]) -> bool {
        let mut parts = response.split(|&byte| byte == 0);
        let (identity, user, password) = (parts.next(), parts.next(), parts.next());
        let (known_user, known_password) = (self.auth.user.as_bytes(), self.auth.password.as_bytes());
        identity.is_some_and(|identity| identity.is_empty() || identity == known_user)
            && user == Some(known_user)
            && password == Some(known_password)
            && parts.next().is_none()
    }
}
