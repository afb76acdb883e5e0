//! Locks in Kubernetes. What they have in common with every store is in the conformance suite.

mod configuration;
mod controllers;
mod doctor;
mod errors;
mod limits;
mod lost_replies;
mod requests;
mod watches;
