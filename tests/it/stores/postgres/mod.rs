//! What is special to PostgreSQL.

mod doctor;
mod errors;
mod lost_replies;
mod tls;
