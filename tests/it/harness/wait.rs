//! The one place where a test lets time pass: looking again and again until something is so.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long a condition may take that comes in milliseconds on an idle machine: two cores that also compile are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How often is looked: finer costs the machine more than it saves the test.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What one look found: `Some` or `Ok` is what was waited for, `Err` tells what was there instead.
pub(crate) trait Look {
    /// What is waited for.
    type Found;

    /// What was waited for, or what was there instead, in words.
    fn found(self) -> Result<Self::Found, String>;
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, S: Debug> Look for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:#?}"))
    }
}

/// Looks until `look` finds what it is after, and panics with what it last saw when `limit` is over. `what` is a claim in
/// plain English: "the notification is sent".
pub(crate) async fn eventually<L: Look>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> L) -> L::Found {
    let until = Instant::now() + limit;
    loop {
        match look().await.found() {
            Ok(found) => return found,
            Err(seen) if Instant::now() >= until => panic!("not so after {limit:?}: {what}; last seen: {seen}"),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[tokio::test]
async fn waiting_ends_as_soon_as_the_condition_holds() {
    let mut looks = 0;
    let found = eventually("the third look finds it", PATIENCE, async || {
        looks += 1;
        (looks == 3).then_some("it")
    })
    .await;
    assert_eq!((found, looks), ("it", 3));
}

#[tokio::test]
#[should_panic(expected = "not so after 1ms: the row is sent; last seen: \"pending\"")]
async fn waiting_in_vain_says_what_was_seen_last() {
    eventually("the row is sent", Duration::from_millis(1), async || Err::<(), _>("pending")).await;
}
