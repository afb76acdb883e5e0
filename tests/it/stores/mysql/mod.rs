//! What is special to MySQL and MariaDB.

mod connections;
mod doctor;
mod errors;
mod faults;
mod users;
