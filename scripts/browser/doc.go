// Package browser tests the pages of the server in a real browser: that the dashboard shows new
// events without a reload, that its content security policy lets it work, that the pages of routes
// and problems can be read, and that a page of another site cannot use the API.
//
// Its tests have the build tag "browser"; `make browser` runs them.
package browser
