//! From an item with the attribute to the items that replace it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::visit_mut::VisitMut;
use syn::{Error, Item, ItemFn, Path, Result};

use crate::marks::Replace;
use crate::normal::{Returns, label};
use crate::options::Options;
use crate::signature::{self, Arguments};
use crate::{emit, refuse};

/// Returns the items that replace an item with the attribute.
///
/// # Errors
/// If the item, or a construct in it, cannot be batched.
pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = Options::parse(options)?;
    match syn::parse2(item)? {
        Item::Fn(function) => expand_function(&function, &options),
        other => Err(Error::new_spanned(other, "`#[batched]` stands before a function")),
    }
}

fn expand_function(function: &ItemFn, options: &Options) -> Result<TokenStream> {
    let arguments = checked(function, &options.krate)?;
    let mut body = with_marks(function, &options.krate)?;
    let result = arguments.result.clone();
    let end = label("return", proc_macro2::Span::call_site());
    Returns { label: end, result, krate: &options.krate }.visit_block_mut(&mut body);
    let batch = emit::batch(function, &arguments, &body, options)?;
    let plain = plain(function, &options.krate);
    Ok(quote!(#plain #batch))
}

/// Reads the signature, and refuses all constructs that cannot be batched.
fn checked(function: &ItemFn, krate: &Path) -> Result<Arguments> {
    let arguments = signature::read(&function.sig);
    let is_method = arguments.as_ref().is_ok_and(|arguments| arguments.is_method);
    let body = refuse::check(&function.block, &function.sig.ident, is_method, krate);
    match (arguments, body) {
        (Ok(arguments), Ok(())) => Ok(arguments),
        (Err(mut error), Err(other)) => {
            error.combine(other);
            Err(error)
        }
        (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Returns the body with the marks as internal calls.
fn with_marks(function: &ItemFn, krate: &Path) -> Result<syn::Block> {
    let mut body = (*function.block).clone();
    let mut replace = Replace { krate, is_plain: false, error: None };
    replace.visit_block_mut(&mut body);
    replace.error.map_or(Ok(body), Err)
}

/// Returns the function without its marks. A program may need the batch alone.
fn plain(function: &ItemFn, krate: &Path) -> TokenStream {
    let mut plain = function.clone();
    signature::strip(&mut plain.sig);
    Replace { krate, is_plain: true, error: None }.visit_block_mut(&mut plain.block);
    quote!(#[allow(dead_code)] #plain)
}
