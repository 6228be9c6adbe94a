//! What a claim of 100 rows touches, with no finished rows and with a million: `EXPLAIN (ANALYZE, BUFFERS)` of the very
//! statement that the worker runs, taken from its committed description in `.sqlx`.
//!
//! `cargo bench --bench claim -- [--finished N] [--plan]`; `--plan` prints the whole plan of the last one.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench stops at the first fault and says what it measured"
)]

use outboxd::sandbox::cluster::{Cluster, Options};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};

const PENDING: u32 = 2_000;
const CLAIMED: u32 = 100;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let finished: u32 =
        args.iter().position(|arg| arg == "--finished").map_or(1_000_000, |at| args[at + 1].parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = Cluster::start(&Options { durable: true, ..Options::default() }).unwrap();
    let mut plan = String::new();
    for finished in [0, finished] {
        plan = runtime.block_on(explain(&cluster, finished));
        println!("{finished:>9} finished rows, {PENDING} pending, {CLAIMED} claimed:");
        for (what, anchor) in [
            ("the whole statement", "Sort "),
            ("finding whose turn it is", "CTE turns"),
            ("finding and locking the rows", "CTE picked"),
            ("changing their state", "Update on delivery"),
            ("recording their attempts", "Insert on attempt"),
            ("reading their content", "Index Scan using outbox_pkey"),
        ] {
            println!("  {what:<30} {}", buffers(&plan, anchor));
        }
        println!("  {}", plan.lines().find(|line| line.starts_with("Execution Time")).unwrap());
    }
    if args.iter().any(|arg| arg == "--plan") {
        println!("{plan}");
    }
}

/// The buffers that the node at `anchor` and those below it touched.
fn buffers<'a>(plan: &'a str, anchor: &str) -> &'a str {
    let below = &plan[plan.find(anchor).unwrap()..];
    let line = below.lines().find(|line| line.contains("Buffers: shared")).unwrap();
    line.split("Buffers: shared ").nth(1).unwrap()
}

async fn explain(cluster: &Cluster, finished: u32) -> String {
    let name = cluster.create_database(None).await.unwrap();
    let mut conn = PgConnection::connect(&cluster.url(&name)).await.unwrap();
    outboxd::store::migrate::migrate(&mut conn).await.unwrap();
    let fill = format!(
        "set session_replication_role = replica;
         insert into outboxd.outbox (id, account_id, sender, recipient, subject, body_text)
             select outboxd.uuid_v7(), 'account ' || (n % 1000), 'a@example.org', 'b@example.net', 's', 'x'
             from generate_series(1, {finished}) n;
         insert into outboxd.delivery (notification_id, account_id, route, priority, size_bytes, first_due_at, state, attempts,
                 fence, tries)
             select id, account_id, 'default', 5, 100, now(), 'sent', 1, 1, 1 from outboxd.outbox;
         insert into outboxd.attempt (notification_id, number, fence, worker, provider, dedup_scope, recovery_window, begun_at,
                 ended_at, ended_by, phase, outcome, counted)
             select notification_id, 1, 1, 'w', 'primary', 'primary', '1 day', now(), now(), 'worker', 'end_of_data', 'sent',
                 true from outboxd.delivery;
         set session_replication_role = origin;
         select count(outboxd.enqueue('acme', 'a@example.org', 'b@example.net', 's', repeat('x', 2000)))
             from generate_series(1, {PENDING})"
    );
    raw_sql(AssertSqlSafe(fill)).execute(&mut conn).await.unwrap();
    raw_sql("vacuum analyze").execute(&mut conn).await.unwrap();
    let prepare = format!(
        "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off;
         set enable_mergejoin = off; set random_page_cost = 1.1; set jit = off;
         prepare claim (text, text, int, bigint, text, text, float8, text, float8, float8, float8, float8, bool) as {}",
        claim_statement()
    );
    raw_sql(AssertSqlSafe(prepare)).execute(&mut conn).await.unwrap();
    let explain = format!(
        "explain (analyze, buffers, costs off, timing off) execute claim ('default', '', {CLAIMED}, 64000000, 'primary', 'w1',
         60, 'primary', null, 86400, null, 345600, false)"
    );
    let mut plan = Vec::new();
    // The first run reads what the second finds in memory.
    for _ in 0..2 {
        let mut tx = conn.begin().await.unwrap();
        plan = sqlx::query_scalar::<_, String>(AssertSqlSafe(explain.clone())).fetch_all(&mut *tx).await.unwrap();
        tx.rollback().await.unwrap();
    }
    plan.join("\n")
}

/// The claim's SQL, as it was checked.
fn claim_statement() -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/.sqlx");
    let statements = std::fs::read_dir(directory).unwrap().map(|entry| {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let description: serde_json::Value = serde_json::from_str(&text).unwrap();
        description["query"].as_str().unwrap().to_owned()
    });
    let claim = statements.into_iter().find(|query| query.contains("with recursive turns")).unwrap();
    // `as "name!"` is a word to the macro.
    claim.replace("!\"", "\"")
}
