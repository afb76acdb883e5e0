//! The decisions on a ledger.

mod rules;
