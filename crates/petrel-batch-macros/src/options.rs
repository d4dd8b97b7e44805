//! The options of the attribute: `#[batched(width = 24, crate = path)]`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, ExprLit, LitInt, Path, Result, Token, parse_quote};

/// The group of a batch without the option `width`: the frames that Petrel's transports receive at once.
const WIDTH_DEFAULT: usize = 24;
/// The greatest group. A core has 10 to 48 outstanding misses, so a larger group gains nothing.
const WIDTH_MAX: usize = 64;

/// The options of one attribute.
pub(crate) struct Options {
    width: Expr,
    /// The path of the crate `petrel-batch` in generated code.
    pub(crate) krate: Path,
}

impl Options {
    /// Returns the group as a const generic argument.
    pub(crate) fn width(&self) -> TokenStream {
        match &self.width {
            Expr::Lit(literal) => literal.to_token_stream(),
            width => quote!({ #width }),
        }
    }

    /// Returns an assertion about a group whose size the macro does not know.
    pub(crate) fn width_assertion(&self) -> Option<TokenStream> {
        let width = &self.width;
        let message = format!("the width of a batch is 1 to {WIDTH_MAX}");
        (!matches!(width, Expr::Lit(_))).then(
            || quote!(const { ::core::assert!(#width >= 1 && #width <= #WIDTH_MAX, #message) };),
        )
    }

    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        syn::parse2(tokens)
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let width = LitInt::new(&WIDTH_DEFAULT.to_string(), proc_macro2::Span::call_site());
        let mut options = Self { width: parse_quote!(#width), krate: parse_quote!(::petrel_batch) };
        while !input.is_empty() {
            if input.peek(Token![crate]) {
                input.parse::<Token![crate]>()?;
                input.parse::<Token![=]>()?;
                options.krate = input.parse()?;
            } else {
                let name: syn::Ident = input.parse()?;
                if name != "width" {
                    return Err(Error::new(
                        name.span(),
                        "unknown option: `#[batched]` takes `width = 1..=64` and `crate = path`",
                    ));
                }
                input.parse::<Token![=]>()?;
                options.width = checked_width(input.parse()?)?;
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

fn checked_width(width: Expr) -> Result<Expr> {
    let refuse = |message: String| Err(Error::new_spanned(&width, message));
    match &width {
        Expr::Lit(ExprLit { lit: syn::Lit::Int(number), .. }) => {
            match number.base10_parse::<usize>() {
                Ok(1..=WIDTH_MAX) => Ok(width),
                _ => refuse(format!("the width of a batch is 1 to {WIDTH_MAX}: choose 8 to 32")),
            }
        }
        Expr::Path(_) => Ok(width),
        _ => refuse(
            "the width is a number or the name of a constant: name the expression by a `const`"
                .to_owned(),
        ),
    }
}
