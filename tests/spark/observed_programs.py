"""HTTP answers of a running application."""

import urllib.error
import urllib.request


def get(url):
    """(status, body)"""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
