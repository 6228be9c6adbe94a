//! A person at the console: a real browser, and the words for what they do in it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use fantoccini::elements::Element;
use fantoccini::{Client, ClientBuilder, Locator};
use outboxd::sandbox::browser::ChromeDriver;

use super::{PATIENCE, eventually, say};

/// One driver for the whole run; each person has a browser of their own.
fn driver() -> &'static ChromeDriver {
    static DRIVER: OnceLock<ChromeDriver> = OnceLock::new();
    DRIVER.get_or_init(|| ChromeDriver::start().expect("a browser for the tests"))
}

/// Whether `test` must be left out for want of a browser, which is said aloud.
pub(crate) fn no_browser(test: &str) -> bool {
    let reason = ChromeDriver::unavailable();
    if let Some(reason) = reason {
        say(&format!("SKIPPED {test}: {reason}"));
    }
    reason.is_some()
}

/// Somebody with a browser.
#[derive(Debug)]
pub(crate) struct Person {
    pub(crate) client: Client,
    console: String,
}

impl Person {
    /// Sits down before a window of this size.
    pub(crate) async fn at(console: &str, width: u32, height: u32, dark: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let profile = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let capabilities = driver().capabilities(&profile, width, height, dark);
        let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(capabilities.as_object().unwrap().clone())
            .connect(&driver().url())
            .await
            .expect("a browser");
        Self { client, console: console.to_owned() }
    }

    /// Signs in.
    pub(crate) async fn signed_in(console: &str, name: &str, token: &str) -> Self {
        let person = Self::at(console, 1280, 900, false).await;
        person.sign_in(name, token).await;
        person.until_shown("Overview").await;
        person
    }

    pub(crate) async fn sign_in(&self, name: &str, token: &str) {
        self.goes_to("/sign-in").await;
        self.writes("input[name=name]", name).await;
        self.writes("input[name=token]", token).await;
        self.clicks("button").await;
    }

    pub(crate) async fn goes_to(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.console)).await.expect("a page");
    }

    pub(crate) async fn sees(&self, css: &str) -> Element {
        self.client
            .wait()
            .at_most(PATIENCE)
            .for_element(Locator::Css(css))
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"))
    }

    pub(crate) async fn clicks(&self, css: &str) {
        self.sees(css).await.click().await.unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    pub(crate) async fn writes(&self, css: &str, text: &str) {
        let field = self.sees(css).await;
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    pub(crate) async fn chooses(&self, css: &str, value: &str) {
        self.sees(css).await.select_by_value(value).await.unwrap_or_else(|error| panic!("{css} {value}: {error}"));
    }

    /// All that the page says.
    pub(crate) async fn text(&self) -> String {
        // A page that is being left has none.
        match self.client.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// Waits until the page says this.
    pub(crate) async fn until_shown(&self, words: &str) -> String {
        eventually(&format!("the page says {words:?}"), PATIENCE, async || {
            let text = self.text().await;
            if text.contains(words) { Ok(text) } else { Err(text) }
        })
        .await
    }

    /// Runs a script in the page.
    pub(crate) async fn runs(&self, script: &str) -> serde_json::Value {
        self.client.execute(script, Vec::new()).await.expect("a script that runs")
    }
}
