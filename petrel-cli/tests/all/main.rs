//! Tests of the command as a process, in one test program.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod bench;
mod cache;
mod calls;
mod command;
mod common;
mod crash;
mod credentials;
mod index;
mod kv;
mod kv_chaos;
mod limits;
mod plain_words;
