//! Different names are different locks, however similar, and never collide with what dlock itself stores.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{Rig, locate};
use dlock::backend::{Intent, Release, StoreError};
use dlock::lock::LockName;

/// Names that a careless encoding would confuse: case, blanks, the two forms of an accented letter, encoded and
/// unencoded slashes, hash tags, and the longest names.
pub fn similar_names() -> Vec<String> {
    let mut names: Vec<String> =
        ["a", "A", "a ", "\u{e1}", "a\u{301}", "a/b", "a%2Fb", "a%2fb", "a%252Fb", "a}b", "{}x", "{a}b"]
            .map(str::to_owned)
            .to_vec();
    names.extend(
        ["a:b", "a*b", "a?b", "[a]", "{a}", "{", "}", "-", "...", " ", "%", "%sha256", "a.lock", "a.dlock"]
            .map(str::to_owned),
    );
    // The digest that would replace the slashes.
    names.push("%sha256-".to_owned() + &"0".repeat(64));
    names.extend(["/".repeat(200), "/".repeat(199), "\u{1F512}".repeat(50), "\u{1F512}".repeat(49)]);
    names
}

/// Those of them that the store has. Another one is refused when it is asked for.
async fn names_of(rig: &dyn Rig, url: &str) -> Vec<String> {
    let (names, others): (Vec<_>, Vec<_>) = similar_names().into_iter().partition(|name| rig.has_name(name));
    for name in others {
        let mut client = Client::at(url, &name);
        client.backend.connect().await.unwrap();
        let refused = client.backend.try_acquire(&client.claim, Intent::TakeNow).await;
        assert!(matches!(refused, Err(StoreError::Config(_))), "{name}: {refused:?}");
    }
    names
}

/// Holds all of them at the same time, which proves every pair, and returns the holders.
async fn hold_all(url: &str, names: &[String]) -> Vec<Client> {
    let mut holders = Vec::new();
    for name in names {
        let mut client = Client::at(url, name);
        client.acquire().await;
        holders.push(client);
    }
    for holder in &mut holders {
        holder.assert_held().await;
    }
    holders
}

/// Frees half of them, in many ways, so that of any two each is once freed without the other; each time exactly that
/// half is free, and the other half is still held.
async fn free_halves(mut holders: Vec<Client>) {
    let bits = usize::BITS - holders.len().leading_zeros();
    for half in (0..bits).flat_map(|bit| [(bit, 0), (bit, 1)]) {
        let is_freed = |number: usize| number >> half.0 & 1 == half.1;
        for (_, holder) in holders.iter_mut().enumerate().filter(|(number, _)| is_freed(*number)) {
            assert_eq!(holder.release().await, Release::Released, "{}", holder.claim.name);
        }
        for (_, holder) in holders.iter_mut().enumerate().filter(|(number, _)| !is_freed(*number)) {
            holder.assert_held().await;
        }
        for (_, holder) in holders.iter_mut().enumerate().filter(|(number, _)| is_freed(*number)) {
            holder.acquire().await;
        }
    }
    for holder in &mut holders {
        assert_eq!(holder.release().await, Release::Released, "{}", holder.claim.name);
    }
}

/// Whether dlock refuses the name there, as a name or as a name on that store.
fn is_refused(url: &str, name: &str) -> bool {
    match LockName::new(name) {
        Ok(name) => locate(url).unwrap().check_name(&name).is_err(),
        Err(_) => true,
    }
}

pub async fn different_names_never_collide(rig: &mut dyn Rig) {
    let url = rig.url();
    let names = names_of(rig, &url).await;
    assert!(!names.iter().any(|name| is_refused(&url, name)));
    let holders = hold_all(&url, &names).await;
    free_halves(holders).await;
}

pub async fn different_names_never_collide_without_prefix_and_suffix(rig: &mut dyn Rig) {
    let url = rig.exact_url();
    let mut names = names_of(rig, &url).await;
    let count = names.len();
    names.retain(|name| !is_refused(&url, name));
    assert!(names.len() + 1 >= count, "{names:?}");
    let holders = hold_all(&url, &names).await;
    free_halves(holders).await;
}

pub async fn names_of_side_keys_are_foreign_or_refused(rig: &mut dyn Rig) {
    let exact = rig.exact_url();
    let mut names = similar_names();
    names.retain(|name| !is_refused(&exact, name));
    let holders = hold_all(&exact, &names).await;
    let plain: Vec<&str> = names.iter().map(String::as_str).collect();
    let own = rig.own_items(&plain);
    assert!(own.len() >= names.len() || !rig.has_own_items(), "what dlock stores besides the locks: {own:?}");
    for item in &own {
        assert!(is_refused(&exact, item), "{item:?} would be one of dlock's own");
    }
    free_halves(holders).await;

    // After the usual prefix and suffix they are names like any other.
    let url = rig.url();
    let mut names = similar_names();
    names.extend(own.into_iter().filter(|item| LockName::new(item).is_ok()));
    names.sort();
    names.dedup();
    names.retain(|name| !is_refused(&url, name));
    let holders = hold_all(&url, &names).await;
    free_halves(holders).await;
}

pub async fn a_notification_for_one_name_does_not_reach_another(rig: &mut dyn Rig) {
    let url = rig.url();
    let holders = hold_all(&url, &names_of(rig, &url).await).await;
    for holder in &holders {
        let told = Client::at(&url, holder.claim.name.as_str()).refused().await;
        assert_eq!(told.identity, Some(holder.claim.identity.clone()));
    }
}
