#!/usr/bin/env python3
"""The chat page in a real browser.

Needs playwright (PyPI) and a chromium, e.g. Debian's package; a running server with the
demonstration model:

    build/calla serve --port 8080 &
    python3 tests/browser/test_page.py http://127.0.0.1:8080 [FOLDER FOR SCREENSHOTS]
"""
import json
import os
import re
import shutil
import sys

from playwright.sync_api import expect, sync_playwright

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
SHOTS = sys.argv[2] if len(sys.argv) > 2 else None
TOOLS = json.dumps([{"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])
passed, failed = 0, 0
problems = []


def shot(page, name):
    if SHOTS:
        page.screenshot(path=os.path.join(SHOTS, name + ".png"))


def check(name, fn):
    global passed, failed
    try:
        fn()
        passed += 1
        print("ok    ", name)
    except Exception as e:  # noqa: BLE001 - every failure is reported by name
        failed += 1
        print("FAILED", name, "-", str(e).splitlines()[0][:300])


def settings(page, **values):
    page.get_by_role("button", name="Settings").click()
    for label, value in values.items():
        field = page.get_by_label(label.replace("_", " "))
        if isinstance(value, bool):
            field.set_checked(value)
        elif label == "Colours":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Done").click()


def ask(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def idle(page):
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60000)


def new_page(context):
    page = context.new_page()
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: problems.append("external request " + r.url) if not r.url.startswith((BASE, "data:", "blob:")) else None)
    page.goto(BASE + "/")
    return page


def desktop(browser):
    context = browser.new_context(viewport={"width": 1100, "height": 800}, color_scheme="light")
    page = new_page(context)

    def plain():
        settings(page, Let_the_model_think_before_it_answers=False, Temperature="0")
        ask(page, "Hello!")
        expect(page.locator(".msg.assistant .text").last).to_contain_text("I am Calla", timeout=60000)
        idle(page)
        expect(page.locator(".foot").last).to_contain_text("tokens")

    def thinking():
        settings(page, Let_the_model_think_before_it_answers=True)
        ask(page, "What is 47 + 38?")
        idle(page)
        fold = page.locator(".msg.assistant details").last
        expect(fold).to_be_visible()
        assert fold.get_attribute("open") is None, "thinking is folded"
        expect(page.locator(".msg.assistant > .text").last).to_contain_text("85")
        shot(page, "thinking")

    def reload():
        before = page.locator(".msg").count()
        page.reload()
        expect(page.locator(".msg")).to_have_count(before)

    def tools():
        page.get_by_role("button", name="New chat").click()
        settings(page, Let_the_model_think_before_it_answers=False, **{"Tools_(JSON_array;_you_type_the_results)": TOOLS})
        ask(page, "What is the weather in Lima?")
        idle(page)
        expect(page.locator(".call")).to_contain_text("get_weather")
        expect(page.locator(".call")).to_contain_text("Lima")
        shot(page, "tool-call")
        page.get_by_label("Result of get_weather").fill('{"temperature": 21, "sky": "sunny"}')
        page.get_by_role("button", name="Give result").click()
        expect(page.locator(".msg.assistant")).to_have_count(2, timeout=60000)
        idle(page)
        assert len(page.locator(".msg.assistant > .text").last.inner_text()) > 3
        shot(page, "tool-result")

    def bad_tools():
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Tools (JSON array").fill("{")
        page.get_by_role("button", name="Done").click()
        expect(page.locator("#tools-error")).to_contain_text("not JSON")
        page.get_by_label("Tools (JSON array").fill("")
        page.get_by_role("button", name="Done").click()

    def stop():
        page.get_by_role("button", name="New chat").click()
        settings(page, System_prompt="", Temperature="2", Let_the_model_think_before_it_answers=True)
        ask(page, "Count from 1 to 100. " * 20)
        page.get_by_role("button", name="Stop").click(timeout=60000)
        idle(page)
        settings(page, Temperature="0")

    def escape_and_markup():
        page.get_by_role("button", name="New chat").click()
        ask(page, "<img src=x onerror=alert(1)> **bold** `code`")
        idle(page)
        assert page.locator("#log img").count() == 0, "text stays text"

    def dark():
        settings(page, Colours="dark")
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(23, 24, 27)", colour
        shot(page, "dark")
        settings(page, Colours="")

    def error():
        page.route("**/v1/chat/completions", lambda r: r.fulfill(status=429, content_type="application/json", body='{"error":{"message":"the queue is full"}}'))
        ask(page, "Hi")
        expect(page.locator(".msg.error")).to_contain_text("the queue is full")
        page.unroute("**/v1/chat/completions")
        problems[:] = [p for p in problems if "429" not in p]

    for fn in (plain, thinking, reload, tools, bad_tools, stop, escape_and_markup, dark, error):
        check("desktop: " + fn.__name__, fn)
    context.close()


def phone(browser):
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme="dark")
    page = new_page(context)

    def narrow():
        settings(page, Let_the_model_think_before_it_answers=False)
        ask(page, "Write " + "averylongword" * 12)
        idle(page)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"the page is {wide} pixels wide"
        shot(page, "phone")
        page.get_by_role("button", name="Settings").click()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"with settings {wide} pixels wide"
        shot(page, "phone-settings")
        page.keyboard.press("Escape")

    def keyboard():
        page.reload()
        page.get_by_label("Message", exact=True).focus()
        page.keyboard.type("Who are you?")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "send"
        page.keyboard.press("Enter")
        idle(page)
        expect(page.locator(".msg.assistant > .text").last).to_contain_text("Calla", timeout=60000)
        assert re.search("Calla", page.locator("#status").inner_text()), "the answer is announced"

    for fn in (narrow, keyboard):
        check("phone: " + fn.__name__, fn)
    context.close()


def main():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        desktop(browser)
        phone(browser)
        browser.close()

    def quiet():
        assert not problems, problems
    check("no console message, no page error, no external request", quiet)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
