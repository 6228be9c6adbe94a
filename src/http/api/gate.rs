//! Who may come in: a bounded number of requests, each with a valid token that allows what it asks for.
//!
//! Nothing of the body is looked at before the token is known to be good.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::asking::Asking;
use super::problem::{Code, Problem};
use crate::domain::token::{Scope, Token};
use crate::store::tokens::Caller;

/// Lets requests in.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    asking: Asking,
    all: Arc<Semaphore>,
    accounts: Arc<Accounts>,
}

/// How many requests each account has under way.
#[derive(Debug)]
struct Accounts {
    under_way: Mutex<HashMap<String, u32>>,
    most: u32,
}

/// A request that was let in, for as long as it lasts.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) caller: Caller,
    _one_of_all: OwnedSemaphorePermit,
    _one_of_the_account: Place,
}

#[derive(Debug)]
struct Place {
    accounts: Arc<Accounts>,
    account_id: String,
}

impl Gate {
    pub(super) fn new(asking: Asking, in_flight: u32, account_in_flight: u32) -> Self {
        let most = usize::try_from(in_flight).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            asking,
            all: Arc::new(Semaphore::new(most)),
            accounts: Arc::new(Accounts { under_way: Mutex::default(), most: account_in_flight }),
        }
    }

    /// Lets a request in whose token has one of `scopes`.
    pub(super) async fn admit(
        &self,
        headers: &HeaderMap,
        scopes: &[Scope],
        deadline: Instant,
    ) -> Result<Admitted, Problem> {
        let one_of_all = Arc::clone(&self.all)
            .try_acquire_owned()
            .map_err(|_| Problem::new(Code::Overloaded, "Send the same request again after Retry-After."))?;
        let unauthenticated = || {
            let detail = "Send `Authorization: Bearer …` with a token that is neither unknown, expired nor revoked.";
            Problem::new(Code::Unauthenticated, detail)
        };
        let token = bearer(headers).ok_or_else(unauthenticated)?;
        let caller = self.asking.caller(&token, deadline).await?;
        let caller = caller.ok_or_else(unauthenticated)?;
        let one_of_the_account = self.accounts.enter(&caller.account_id)?;
        if !scopes.iter().any(|scope| caller.scopes.contains(scope)) {
            let names: Vec<_> = scopes.iter().map(|scope| format!("`{scope}`")).collect();
            let detail = format!("Use a token with the scope {}.", names.join(" or "));
            return Err(Problem::new(Code::Forbidden, detail));
        }
        Ok(Admitted { caller, _one_of_all: one_of_all, _one_of_the_account: one_of_the_account })
    }
}

/// The token of `Authorization: Bearer …` (RFC 6750, 2.1); the scheme's name knows no case (RFC 9110, 11.1).
fn bearer(headers: &HeaderMap) -> Option<Token> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { Token::parse(token.trim()) } else { None }
}

impl Accounts {
    fn enter(self: &Arc<Self>, account_id: &str) -> Result<Place, Problem> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.entry(account_id.to_owned()).or_default();
        if *count >= self.most {
            let detail = "Let some of this account's requests end, and send the same request again after Retry-After.";
            return Err(Problem::new(Code::AccountOverloaded, detail));
        }
        *count += 1;
        Ok(Place { accounts: Arc::clone(self), account_id: account_id.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = self.accounts.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.account_id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                under_way.remove(&self.account_id);
            }
        }
    }
}
