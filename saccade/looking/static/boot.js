SaccadeLook.mount(document.getElementById("look"), JSON.parse(document.getElementById("data").textContent));
