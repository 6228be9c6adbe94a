//! An identity provider (OpenID Connect Core 1.0, 3.1) that signs whoever is asked for in, and lies as it is told to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::{Form, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const CLIENT_ID: &str = "console";

/// A running one. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) addr: SocketAddr,
    known: Arc<Known>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Known {
    issuer: String,
    /// The key that it publishes, and the one that it signs with.
    published: Mutex<EcdsaKeyPair>,
    signing: Mutex<EcdsaKeyPair>,
    /// What each code stands for.
    codes: Mutex<HashMap<String, HashMap<String, String>>>,
    /// Claims that replace those of an honest provider; null takes one away.
    lies: Mutex<Value>,
    header: Mutex<Value>,
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A new key, as PKCS #8.
fn key() -> Vec<u8> {
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
    key.as_ref().to_vec()
}

fn pair(document: &[u8]) -> EcdsaKeyPair {
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document, &SystemRandom::new()).unwrap()
}

impl Identity {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let document = key();
        let known = Arc::new(Known {
            issuer: format!("http://{addr}"),
            published: Mutex::new(pair(&document)),
            signing: Mutex::new(pair(&document)),
            codes: Mutex::default(),
            lies: Mutex::new(json!({})),
            header: Mutex::new(json!({ "alg": "ES256", "kid": "1" })),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .with_state(Arc::clone(&known));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { addr, known, task }
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.known.issuer
    }

    /// From now on its ID tokens have these claims instead; null takes one away.
    pub(crate) fn lies(&self, claims: Value) {
        *self.known.lies.lock().unwrap() = claims;
    }

    /// From now on its ID tokens have this header.
    pub(crate) fn header(&self, header: Value) {
        *self.known.header.lock().unwrap() = header;
    }

    /// From now on it signs with another key, which it publishes or not.
    pub(crate) fn other_key(&self, publishes: bool) {
        let document = key();
        *self.known.signing.lock().unwrap() = pair(&document);
        if publishes {
            *self.known.published.lock().unwrap() = pair(&document);
        }
    }
}

async fn discovery(State(known): State<Arc<Known>>) -> Json<Value> {
    let issuer = &known.issuer;
    Json(json!({
        "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"), "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"), "response_types_supported": ["code"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }))
}

async fn keys(State(known): State<Arc<Known>>) -> Json<Value> {
    let point = known.published.lock().unwrap().public_key().as_ref().to_vec();
    let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
    Json(json!({ "keys": [{ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "1", "x": x, "y": y }] }))
}

async fn authorize(State(known): State<Arc<Known>>, Query(asked): Query<HashMap<String, String>>) -> Response {
    assert_eq!((asked["client_id"].as_str(), asked["response_type"].as_str()), (CLIENT_ID, "code"));
    assert_eq!(asked["code_challenge_method"], "S256");
    assert!(asked["scope"].split(' ').any(|scope| scope == "openid"), "{asked:?}");
    let code = format!("code-{}", known.codes.lock().unwrap().len());
    let back = format!("{}?code={code}&state={}", asked["redirect_uri"], asked["state"]);
    known.codes.lock().unwrap().insert(code, asked);
    Redirect::to(&back).into_response()
}

/// Gives a token for each code once, to whoever has its verifier.
async fn token(State(known): State<Arc<Known>>, Form(asked): Form<HashMap<String, String>>) -> Response {
    let refused = (StatusCode::BAD_REQUEST, Json(json!({ "error": "invalid_grant" }))).into_response();
    let Some(flow) = known.codes.lock().unwrap().remove(&asked["code"]) else { return refused };
    let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, asked["code_verifier"].as_bytes()));
    if challenge != flow["code_challenge"] || asked["redirect_uri"] != flow["redirect_uri"] {
        return refused;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut claims = json!({
        "iss": known.issuer, "aud": CLIENT_ID, "sub": "0815", "iat": now, "exp": now + 300, "nonce": flow["nonce"],
        "email": "ada@example.org", "email_verified": true, "preferred_username": "ada",
    });
    for (claim, value) in known.lies.lock().unwrap().as_object().unwrap() {
        claims.as_object_mut().unwrap().remove(claim);
        if !value.is_null() {
            claims[claim] = value.clone();
        }
    }
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = known.header.lock().unwrap().clone();
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let signature = if header["alg"] == "none" {
        String::new()
    } else {
        let signature = known.signing.lock().unwrap().sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        URL_SAFE_NO_PAD.encode(signature)
    };
    let answer = json!({ "access_token": "at", "token_type": "Bearer", "id_token": format!("{signed}.{signature}") });
    Json(answer).into_response()
}
